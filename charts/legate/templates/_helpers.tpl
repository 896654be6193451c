{{/* The prefix of all names. Names that Kubernetes derives from it have at most 63 characters. */}}
{{- define "legate.fullname" -}}
{{- include "legate.check" . -}}
{{- $name := .Values.global.name | default (contains "legate" .Release.Name | ternary .Release.Name (printf "%s-legate" .Release.Name)) -}}
{{- if gt (len $name) 45 -}}
{{- fail (printf "the name %s has more than 45 characters: set global.name to a shorter one" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Labels that select the pods of a component: (list $ "server") */}}
{{- define "legate.selector" -}}
{{- $root := index . 0 -}}
app: {{ $root.Chart.Name }}
release: {{ $root.Release.Name }}
component: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object of a component: (list $ "server") */}}
{{- define "legate.labels" -}}
{{- $root := index . 0 -}}
{{ include "legate.selector" . }}
chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
heritage: {{ $root.Release.Service }}
{{- end -}}

{{/* Labels of pods: (list $ "server" .Values.server.extraLabels). The version of the chart is not among
     them: what an upgrade does not change goes on running. */}}
{{- define "legate.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "legate.selector" . }}
{{- with merge (dict) (index . 2) $root.Values.global.extraLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Whether a component is enabled: "true" or empty */}}
{{- define "legate.servers" -}}
{{- $on := .Values.server.enabled -}}
{{- if eq (toString $on) "-" -}}
{{- if and .Values.global.enabled (not .Values.externalServers.enabled) -}}true{{- end -}}
{{- else if $on -}}true{{- end -}}
{{- end -}}

{{- define "legate.operator" -}}
{{- $on := .Values.connectInject.enabled -}}
{{- if eq (toString $on) "-" -}}
{{- if .Values.global.enabled -}}true{{- end -}}
{{- else if $on -}}true{{- end -}}
{{- end -}}

{{- define "legate.dns" -}}
{{- $on := .Values.dns.enabled -}}
{{- if eq (toString $on) "-" -}}
{{- if .Values.connectInject.transparentProxy.defaultEnabled -}}true{{- end -}}
{{- else if $on -}}true{{- end -}}
{{- end -}}

{{/* Whether the operator creates the servers' CA and certificate */}}
{{- define "legate.managedCa" -}}
{{- if and .Values.global.tls.enabled (include "legate.servers" .) (not .Values.global.tls.caCert.secretName) -}}true{{- end -}}
{{- end -}}

{{/* Whether the operator signs the servers' certificate with a given CA */}}
{{- define "legate.givenCa" -}}
{{- if .Values.global.tls.caKey.secretName -}}true{{- end -}}
{{- end -}}

{{/* Whether this is a secondary datacenter */}}
{{- define "legate.secondary" -}}
{{- with .Values.global.federation -}}
{{- if and .enabled .primaryDatacenter (ne .primaryDatacenter $.Values.global.datacenter) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether programs verify the servers with the CA in a Secret */}}
{{- define "legate.caSecret" -}}
{{- if .Values.global.tls.enabled -}}
{{- if include "legate.managedCa" . -}}
{{ include "legate.fullname" . }}-ca-cert
{{- else if not (and .Values.externalServers.enabled .Values.externalServers.useSystemRoots) -}}
{{ .Values.global.tls.caCert.secretName }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "legate.caVolume" -}}
- name: ca
  secret:
    secretName: {{ include "legate.caSecret" . }}
    items:
      - key: {{ eq (include "legate.managedCa" .) "true" | ternary "tls.crt" (.Values.global.tls.caCert.secretKey | default "tls.crt") }}
        path: tls.crt
{{- end -}}

{{- define "legate.serverHost" -}}
{{- if .Values.externalServers.enabled -}}
{{ index .Values.externalServers.hosts 0 }}
{{- else -}}
{{ include "legate.fullname" . }}-server.{{ .Release.Namespace }}.svc
{{- end -}}
{{- end -}}

{{/* Flags of legate-k8s for the HTTP API of the servers */}}
{{- define "legate.serverFlags" -}}
- --server-addresses={{ include "legate.serverHost" . }}
{{- if .Values.externalServers.enabled }}
- --server-http-port={{ .Values.externalServers.httpsPort }}
{{- else }}
- --server-http-port={{ .Values.global.tls.enabled | ternary 8501 8500 }}
{{- end }}
{{- if .Values.global.tls.enabled }}
- --tls
{{- if and .Values.externalServers.enabled .Values.externalServers.useSystemRoots }}
- --use-system-roots
{{- end }}
{{- with .Values.externalServers.tlsServerName }}
- --tls-server-name={{ . }}
{{- end }}
{{- end }}
{{- with .Values.global.adminPartitions }}
{{- if .enabled }}
- --partition={{ .name }}
{{- end }}
{{- end }}
{{- if .Values.global.enableConsulNamespaces }}
{{- with .Values.connectInject.consulNamespaces }}
{{- if .mirroringK8S }}
- --mirror-namespaces={{ .mirroringK8SPrefix }}
{{- else }}
- --destination-namespace={{ .consulDestinationNamespace }}
{{- end }}
{{- end }}
{{- if .Values.global.acls.manageSystemACLs }}
- --cross-namespace-acl-policy=cross-namespace-policy
{{- end }}
{{- end }}
{{- end -}}

{{/* Flags for the log: (list $ level) */}}
{{- define "legate.logFlags" -}}
{{- $root := index . 0 -}}
- --log-level={{ index . 1 | default $root.Values.global.logLevel }}
{{- if $root.Values.global.logJSON }}
- --log-json
{{- end }}
{{- end -}}

{{- define "legate.pull" -}}
{{- with .Values.global.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{- define "legate.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Security contexts of pods and containers, for the level "restricted" of Pod Security */}}
{{- define "legate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 100
runAsGroup: 1000
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "legate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Delays the stop of a pod until it receives no more requests */}}
{{- define "legate.preStop" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
lifecycle:
  preStop:
    sleep:
      seconds: 5
{{- end }}
{{- end -}}

{{/* A value that is YAML, or a template as text: (list $ value) */}}
{{- define "legate.yamlOrText" -}}
{{- $value := index . 1 -}}
{{- if kindIs "string" $value -}}
{{ tpl $value (index . 0) }}
{{- else -}}
{{ toYaml $value }}
{{- end -}}
{{- end -}}

{{/* Affinity of a component, by default for different nodes: (list $ "server" value) */}}
{{- define "legate.affinity" -}}
{{- if index . 2 -}}
{{ include "legate.yamlOrText" (list (index . 0) (index . 2)) }}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "legate.selector" . | nindent 12 }}
{{- end -}}
{{- end -}}

{{/* Scheduling settings: the values of a component */}}
{{- define "legate.scheduling" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- range $key := list "nodeSelector" "tolerations" "topologySpreadConstraints" }}
{{- with index $values $key }}
{{ $key }}:
  {{- include "legate.yamlOrText" (list $root .) | nindent 2 }}
{{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Annotations that are YAML, or a template as text: (list $ value) */}}
{{- define "legate.annotations" -}}
{{- with index . 1 }}
{{ include "legate.yamlOrText" (list (index $ 0) .) }}
{{- end }}
{{- end -}}

{{/* The auth method of the chart's own pods. That of a secondary datacenter is the primary's, too. */}}
{{- define "legate.componentAuthMethod" -}}
{{ include "legate.fullname" . }}-k8s-component-auth-method
{{- if include "legate.secondary" . }}-{{ .Values.global.datacenter }}{{ end }}
{{- end -}}

{{- define "legate.sidecarAuthMethod" -}}
{{- if .Values.connectInject.overrideAuthMethodName -}}
{{ .Values.connectInject.overrideAuthMethodName }}
{{- else if .Values.global.acls.manageSystemACLs -}}
{{ include "legate.fullname" . }}-k8s-auth-method
{{- end -}}
{{- end -}}
