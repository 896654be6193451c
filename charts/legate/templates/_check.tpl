{{/* Checks that the schema cannot express. Renders nothing. Included by the helper for names, so always run. */}}
{{- define "legate.check" -}}
{{- $v := .Values -}}
{{- $servers := include "legate.servers" . -}}
{{- if and $servers $v.externalServers.enabled -}}
{{- fail "server.enabled and externalServers.enabled exclude each other: set server.enabled to false, or leave it at \"-\"" -}}
{{- end -}}
{{- if and (not $servers) (not $v.externalServers.enabled) (include "legate.operator" .) -}}
{{- fail "the operator needs servers: set server.enabled, or externalServers.enabled and externalServers.hosts" -}}
{{- end -}}
{{- if and $v.externalServers.enabled (ne (len $v.externalServers.hosts) 1) -}}
{{- fail "externalServers.hosts must have exactly one host: a name may stand for several servers" -}}
{{- end -}}
{{- if and $servers (gt (int $v.server.replicas) 1) (not $v.server.etcd.endpoints) -}}
{{- fail "server.replicas above 1 needs server.etcd.endpoints: a volume belongs to one server" -}}
{{- end -}}
{{- if and $v.server.etcd.endpoints (not $v.server.encryptionKey.secretName) -}}
{{- fail "server.etcd.endpoints needs server.encryptionKey.secretName: all servers have the same key (openssl rand -hex 32)" -}}
{{- end -}}
{{- if ne (empty $v.server.etcd.user) (empty $v.server.etcd.password.secretName) -}}
{{- fail "server.etcd.user and server.etcd.password.secretName require each other" -}}
{{- end -}}
{{- if and $servers $v.global.tls.enabled -}}
{{- if ne (empty $v.global.tls.caCert.secretName) (empty $v.server.serverCert.secretName) -}}
{{- fail "global.tls.caCert.secretName and server.serverCert.secretName require each other: the operator signs only with its own CA" -}}
{{- end -}}
{{- if and (include "legate.managedCa" .) (not (include "legate.operator" .)) -}}
{{- fail "without the operator (connectInject.enabled) there is no certificate for the servers: set global.tls.caCert.secretName and server.serverCert.secretName, or global.tls.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- if and $v.externalServers.enabled $v.global.tls.enabled (not $v.externalServers.useSystemRoots) (not $v.global.tls.caCert.secretName) -}}
{{- fail "external servers with TLS need global.tls.caCert.secretName, or externalServers.useSystemRoots" -}}
{{- end -}}
{{- if and $v.externalServers.enabled $v.global.acls.manageSystemACLs -}}
{{- if not $v.global.acls.bootstrapToken.secretName -}}
{{- fail "global.acls.manageSystemACLs with external servers needs global.acls.bootstrapToken.secretName" -}}
{{- end -}}
{{- if not $v.externalServers.k8sAuthMethodHost -}}
{{- fail "global.acls.manageSystemACLs with external servers needs externalServers.k8sAuthMethodHost: the address of this cluster's API server, at which the servers reach it" -}}
{{- end -}}
{{- end -}}
{{- if $v.global.adminPartitions.enabled -}}
{{- if not $v.global.enableConsulNamespaces -}}
{{- fail "global.adminPartitions.enabled needs global.enableConsulNamespaces" -}}
{{- end -}}
{{- if and $servers (ne $v.global.adminPartitions.name "default") -}}
{{- fail "global.adminPartitions.name must be \"default\" if the chart runs the servers: other partitions are other clusters, with externalServers" -}}
{{- end -}}
{{- end -}}
{{- include "legate.checkGateways" . -}}
{{- if and $v.global.metrics.serviceMonitor.enabled (not $v.global.metrics.enabled) -}}
{{- fail "global.metrics.serviceMonitor.enabled needs global.metrics.enabled" -}}
{{- end -}}
{{- end -}}
