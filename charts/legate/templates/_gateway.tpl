{{/* All gateways, as a JSON list. For each: its kind, its own name, its service and namespace in the mesh, its
     ports, its annotations, its log level, and its values, in which the gateway's override the defaults. */}}
{{- define "legate.gateways" -}}
{{- $all := list -}}
{{- with .Values.meshGateway -}}
{{- if .enabled -}}
{{- $port := dict "port" .service.port "target" .containerPort "node" .service.nodePort "host" .hostPort -}}
{{- $wan := .wanAddress -}}
{{- $wanPort := eq $wan.source "Service" | ternary .service.port $wan.port -}}
{{- if and (eq $wan.source "Service") (eq .service.type "NodePort") -}}
{{- $wanPort = .service.nodePort -}}
{{- end -}}
{{- $annotations := dict "mesh-gateway-container-port" .containerPort "gateway-wan-address-source" $wan.source "gateway-wan-port" $wanPort -}}
{{- if eq $wan.source "Static" -}}
{{- $annotations = set $annotations "gateway-wan-address-static" $wan.static -}}
{{- end -}}
{{- if $.Values.global.federation.enabled -}}
{{- $annotations = set $annotations "consul-wan-federation" 1 -}}
{{- end -}}
{{- $all = append $all (dict "kind" "mesh-gateway" "name" "mesh-gateway" "service" .consulServiceName "namespace" "" "ports" (list $port) "annotations" $annotations "logLevel" .logLevel "values" .) -}}
{{- end -}}
{{- end -}}
{{- with .Values.ingressGateways -}}
{{- if .enabled -}}
{{- $kind := . -}}
{{- range .gateways -}}
{{- $v := mergeOverwrite (deepCopy $kind.defaults) . -}}
{{- $ports := list -}}
{{- range $v.service.ports -}}
{{- $ports = append $ports (dict "port" .port "target" .port "node" .nodePort) -}}
{{- end -}}
{{- $first := first $ports -}}
{{- $annotations := dict "gateway-wan-address-source" "Service" "gateway-wan-port" (eq $v.service.type "NodePort" | ternary $first.node $first.port) -}}
{{- $all = append $all (dict "kind" "ingress-gateway" "name" .name "service" .name "namespace" $v.consulNamespace "ports" $ports "annotations" $annotations "logLevel" $kind.logLevel "values" $v) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.terminatingGateways -}}
{{- if .enabled -}}
{{- $kind := . -}}
{{- range .gateways -}}
{{- $v := mergeOverwrite (deepCopy $kind.defaults) . -}}
{{- $port := dict "port" $v.service.port "target" 8443 -}}
{{- $all = append $all (dict "kind" "terminating-gateway" "name" .name "service" .name "namespace" $v.consulNamespace "ports" (list $port) "annotations" dict "logLevel" $kind.logLevel "values" $v) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* Checks of gateways that the schema cannot express */}}
{{- define "legate.checkGateways" -}}
{{- $names := list "server" "operator" "dns" "acl-init" "auth-method" -}}
{{- range include "legate.gateways" . | fromJsonArray -}}
{{- if has .name $names -}}
{{- fail (printf "the gateway %s needs another name: names of gateways are different from each other, and from those of other parts of the chart" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if not (include "legate.operator" $) -}}
{{- fail (printf "the gateway %s needs the operator, which registers its pods: set connectInject.enabled" .name) -}}
{{- end -}}
{{- if and .namespace (ne .namespace "default") (not $.Values.global.enableConsulNamespaces) -}}
{{- fail (printf "consulNamespace of the gateway %s needs global.enableConsulNamespaces" .name) -}}
{{- end -}}
{{- $wan := index .annotations "gateway-wan-address-source" -}}
{{- if and (eq .values.service.type "NodePort") (eq (toString $wan) "Service") (not (first .ports).node) -}}
{{- fail (printf "the Service of the gateway %s is of type NodePort: set the nodePort of its first port, which is in the gateway's WAN address" .name) -}}
{{- end -}}
{{- if and (eq (toString $wan) "Static") (not .values.wanAddress.static) -}}
{{- fail "meshGateway.wanAddress.source Static needs meshGateway.wanAddress.static" -}}
{{- end -}}
{{- if and .values.hostNetwork .values.hostPort -}}
{{- fail "meshGateway.hostNetwork and meshGateway.hostPort exclude each other: on the node's network the port is meshGateway.containerPort" -}}
{{- end -}}
{{- if and .values.hostNetwork (lt (int (first .ports).target) 1024) -}}
{{- fail "meshGateway.hostNetwork needs a meshGateway.containerPort of 1024 or above: the gateway has no privileges on the node" -}}
{{- end -}}
{{- with .values.horizontalPodAutoscaler -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail "horizontalPodAutoscaler.minReplicas of a gateway is above maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Flags of acl-init for the logins of gateways */}}
{{- define "legate.gatewayFlags" -}}
{{- range include "legate.gateways" . | fromJsonArray }}
- --{{ .kind }}={{ .service }}{{ if and .namespace $.Values.global.enableConsulNamespaces }}.{{ .namespace }}{{ end }}
{{- end }}
{{- end -}}

{{/* Flags of the dataplane: (list $ gateway). When the pod terminates, it drains, and ends as soon as no
     connection is open, after 5 s at least. The rest of the pod's time is for the preStop hook and Envoy's exit. */}}
{{- define "legate.gatewayArguments" -}}
{{- $root := index . 0 -}}
{{- $gateway := index . 1 -}}
{{- $v := $root.Values -}}
{{- $namespaces := $v.global.enableConsulNamespaces -}}
- -addresses={{ include "legate.serverHost" $root }}
- -grpc-port={{ $v.externalServers.enabled | ternary $v.externalServers.grpcPort 8502 }}
{{- if and $v.externalServers.enabled $v.externalServers.skipServerWatch }}
- -server-watch-disabled=true
{{- end }}
- -log-level={{ $gateway.logLevel | default $v.global.logLevel }}
- -log-json={{ $v.global.logJSON }}
{{- if $v.global.acls.manageSystemACLs }}
- -credential-type=login
- -login-auth-method={{ include "legate.componentAuthMethod" $root }}
- -login-bearer-token-path=/consul/token/token
{{- if $namespaces }}
- -login-namespace=default
{{- end }}
{{- if $v.global.adminPartitions.enabled }}
- -login-partition={{ $v.global.adminPartitions.name }}
{{- end }}
{{- end }}
{{- if $namespaces }}
- -service-namespace={{ $gateway.namespace | default "default" }}
{{- end }}
{{- if $v.global.adminPartitions.enabled }}
- -service-partition={{ $v.global.adminPartitions.name }}
{{- end }}
{{- if $v.global.tls.enabled }}
{{- with $v.externalServers.tlsServerName }}
- -tls-server-name={{ . }}
{{- end }}
{{- if include "legate.caSecret" $root }}
- -ca-certs=/consul/tls/ca/tls.crt
{{- end }}
{{- else }}
- -tls-disabled
{{- end }}
- -envoy-ready-bind-port=21000
- -shutdown-drain-listeners
- -shutdown-end-when-idle
- -shutdown-grace-period-seconds={{ sub (int $gateway.values.terminationGracePeriodSeconds) 10 }}
- -telemetry-prom-scrape-path=/metrics
{{- end -}}

{{/* Environment of the dataplane: the kind of the gateway */}}
{{- define "legate.gatewayEnvironment" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: HOST_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
- name: DP_ENVOY_READY_BIND_ADDRESS
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
# The operator registers the pod under its name.
- name: DP_PROXY_SERVICE_ID
  value: $(POD_NAME)
- name: DP_SERVICE_NODE_NAME
  value: $(NODE_NAME)-virtual
- name: DP_CREDENTIAL_LOGIN_META1
  value: pod=$(POD_NAMESPACE)/$(POD_NAME)
- name: DP_CREDENTIAL_LOGIN_META2
  value: component={{ . }}
- name: DP_CREDENTIAL_LOGIN_META3
  value: pod-uid=$(POD_UID)
{{- end -}}

{{/* Whether the gateways' metrics are on: "true" or empty */}}
{{- define "legate.gatewayMetrics" -}}
{{- with .Values.global.metrics -}}
{{- if and .enabled .enableGatewayMetrics -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The template of a gateway's pods: (list $ gateway) */}}
{{- define "legate.gatewayPod" -}}
{{- $root := index . 0 -}}
{{- $gateway := index . 1 -}}
{{- $v := $gateway.values -}}
{{- $global := $root.Values.global -}}
{{- $caSecret := include "legate.caSecret" $root -}}
{{- $metrics := include "legate.gatewayMetrics" $root -}}
{{- $privileged := false -}}
{{- range $gateway.ports -}}
{{- if lt (int .target) 1024 -}}{{- $privileged = true -}}{{- end -}}
{{- end -}}
metadata:
  labels:
    {{- include "legate.podLabels" (list $root $gateway.name $v.extraLabels) | nindent 4 }}
    # The operator watches only the pods that it registers.
    consul.hashicorp.com/connect-inject-managed-by: legate-k8s
  annotations:
    consul.hashicorp.com/connect-inject: "false"
    consul.hashicorp.com/connect-inject-installation: {{ $root.Release.Namespace }}/{{ include "legate.fullname" $root }}
    consul.hashicorp.com/gateway-kind: {{ $gateway.kind }}
    consul.hashicorp.com/gateway-consul-service-name: {{ $gateway.service }}
    {{- range $key, $value := $gateway.annotations }}
    consul.hashicorp.com/{{ $key }}: {{ $value | toString | quote }}
    {{- end }}
    {{- if and $gateway.namespace $global.enableConsulNamespaces }}
    consul.hashicorp.com/gateway-namespace: {{ $gateway.namespace }}
    {{- end }}
    {{- if $metrics }}
    consul.hashicorp.com/prometheus-scrape-port: "20200"
    {{- if not $global.metrics.serviceMonitor.enabled }}
    prometheus.io/scrape: "true"
    prometheus.io/path: /metrics
    prometheus.io/port: "20200"
    {{- end }}
    {{- end }}
    {{- with include "legate.annotations" (list $root $v.annotations) }}{{ . | trim | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "legate.gatewayName" . }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
  {{- if $v.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  securityContext:
    {{- include "legate.podSecurity" $root | nindent 4 }}
    {{- if $privileged }}
    # For ports below 1024, without privileges.
    sysctls:
      - name: net.ipv4.ip_unprivileged_port_start
        value: "0"
    {{- end }}
  affinity:
    {{- include "legate.affinity" (list $root $gateway.name $v.affinity) | nindent 4 }}
  {{- with include "legate.scheduling" (list $root $v) }}{{ . | trim | nindent 2 }}{{ end }}
  containers:
    - name: {{ $gateway.kind }}
      image: {{ $global.imageConsulDataplane }}
      {{- with include "legate.pull" $root }}{{ . | trim | nindent 6 }}{{ end }}
      args:
        {{- include "legate.gatewayArguments" . | nindent 8 }}
      env:
        {{- include "legate.gatewayEnvironment" $gateway.kind | nindent 8 }}
      ports:
        {{- range $gateway.ports }}
        - name: gateway-{{ .target }}
          containerPort: {{ .target }}
          {{- with .host }}
          hostPort: {{ . }}
          {{- end }}
        {{- end }}
        - name: ready
          containerPort: 21000
        {{- if $metrics }}
        - name: prometheus
          containerPort: 20200
        {{- end }}
      # Once Envoy has accepted its whole configuration.
      startupProbe:
        exec:
          command: [/usr/local/bin/legate-dataplane, -status]
        periodSeconds: 1
        timeoutSeconds: 5
        failureThreshold: 300
      readinessProbe:
        httpGet:
          path: /ready
          port: ready
        periodSeconds: 2
        failureThreshold: 2
        timeoutSeconds: 5
      {{- with include "legate.preStop" $root }}{{ . | trim | nindent 6 }}{{ end }}
      resources:
        {{- toYaml $v.resources | nindent 8 }}
      securityContext:
        {{- include "legate.containerSecurity" $root | nindent 8 }}
      {{- with include "legate.gatewayMounts" (list $root $v) }}{{ . | trim | nindent 6 }}{{ end }}
  {{- with include "legate.gatewayVolumes" (list $root $v) }}{{ . | trim | nindent 2 }}{{ end }}
{{- end -}}

{{- define "legate.gatewayMounts" -}}
{{- $root := index . 0 -}}
{{- $v := index . 1 -}}
{{- $caSecret := include "legate.caSecret" $root -}}
{{- $login := $root.Values.global.acls.manageSystemACLs -}}
{{- if or $caSecret $login $v.extraVolumes }}
volumeMounts:
  {{- if $caSecret }}
  - name: ca
    mountPath: /consul/tls/ca
    readOnly: true
  {{- end }}
  {{- if $login }}
  - name: token
    mountPath: /consul/token
    readOnly: true
  {{- end }}
  {{- range $v.extraVolumes }}
  - name: userconfig-{{ .name }}
    mountPath: /consul/userconfig/{{ .name }}
    readOnly: true
  {{- end }}
{{- end }}
{{- end -}}

{{- define "legate.gatewayVolumes" -}}
{{- $root := index . 0 -}}
{{- $v := index . 1 -}}
{{- $caSecret := include "legate.caSecret" $root -}}
{{- $login := $root.Values.global.acls.manageSystemACLs -}}
{{- if or $caSecret $login $v.extraVolumes }}
volumes:
  {{- if $caSecret }}
  {{- include "legate.caVolume" $root | nindent 2 }}
  {{- end }}
  {{- if $login }}
  # Renewed by the kubelet.
  - name: token
    projected:
      sources:
        - serviceAccountToken:
            path: token
            expirationSeconds: 3600
  {{- end }}
  {{- range $v.extraVolumes }}
  - name: userconfig-{{ .name }}
    {{ .type }}:
      {{ eq .type "secret" | ternary "secretName" "name" }}: {{ .name }}
      {{- with .items }}
      items:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The name of a gateway's objects: (list $ gateway) */}}
{{- define "legate.gatewayName" -}}
{{- $name := printf "%s-%s" (include "legate.fullname" (index . 0)) (index . 1).name -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "the name %s of a gateway has more than 63 characters: set global.name or the gateway's name to a shorter one" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* All objects of a gateway: (list $ gateway) */}}
{{- define "legate.gateway" -}}
{{- $root := index . 0 -}}
{{- $gateway := index . 1 -}}
{{- $v := $gateway.values -}}
{{- $name := include "legate.gatewayName" . -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $component := list $root $gateway.name -}}
{{- $labels := include "legate.labels" $component -}}
{{- $scaled := $v.horizontalPodAutoscaler.enabled -}}
{{- $onHost := false -}}
{{- if or $v.hostNetwork $v.hostPort -}}{{- $onHost = true -}}{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  {{- if not $scaled }}
  replicas: {{ $v.replicas }}
  {{- end }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      {{- if $onHost }}
      # The ports of a node belong to one pod at a time.
      maxUnavailable: 1
      maxSurge: 0
      {{- else }}
      # There are never fewer than the configured replicas.
      maxUnavailable: 0
      maxSurge: 25%
      {{- end }}
  selector:
    matchLabels:
      {{- include "legate.selector" $component | nindent 6 }}
  template:
    {{- include "legate.gatewayPod" . | nindent 4 }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
  {{- with $v.service.annotations }}
  annotations:
    {{- include "legate.yamlOrText" (list $root .) | nindent 4 }}
  {{- end }}
spec:
  type: {{ $v.service.type }}
  selector:
    {{- include "legate.selector" $component | nindent 4 }}
  ports:
    {{- range $gateway.ports }}
    - name: gateway-{{ .port }}
      port: {{ .port }}
      targetPort: {{ .target }}
      {{- with .node }}
      nodePort: {{ . }}
      {{- end }}
    {{- end }}
  {{- with $v.service.additionalSpec }}
  {{- include "legate.yamlOrText" (list $root .) | trim | nindent 2 }}
  {{- end }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
  {{- with $v.serviceAccount.annotations }}
  annotations:
    {{- include "legate.yamlOrText" (list $root .) | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- include "legate.pullSecrets" $root }}
{{- $least := int ($scaled | ternary $v.horizontalPodAutoscaler.minReplicas $v.replicas) }}
{{- if and $v.disruptionBudget.enabled (gt $least 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  maxUnavailable: {{ $v.disruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "legate.selector" $component | nindent 6 }}
{{- end }}
{{- if $scaled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ $name }}
  minReplicas: {{ $v.horizontalPodAutoscaler.minReplicas }}
  maxReplicas: {{ $v.horizontalPodAutoscaler.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $v.horizontalPodAutoscaler.targetCPUUtilizationPercentage }}
{{- end }}
{{- if $root.Values.networkPolicies.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "legate.selector" $component | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        {{- range $gateway.ports }}
        - port: gateway-{{ .target }}
        {{- end }}
        - port: ready
        {{- if include "legate.gatewayMetrics" $root }}
        - port: prometheus
        {{- end }}
{{- end }}
{{- if and (include "legate.gatewayMetrics" $root) $root.Values.global.metrics.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- $labels | nindent 4 }}
    {{- with $root.Values.global.metrics.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "legate.selector" $component | nindent 6 }}
  podMetricsEndpoints:
    - port: prometheus
      path: /metrics
      interval: {{ $root.Values.global.metrics.serviceMonitor.interval }}
{{- end }}
{{- end -}}
