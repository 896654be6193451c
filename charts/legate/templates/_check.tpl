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
{{- if and $v.global.tls.caCert.secretName (not $v.global.tls.caKey.secretName) (not $v.server.serverCert.secretName) -}}
{{- fail "global.tls.caCert.secretName needs global.tls.caKey.secretName, with which the operator signs the servers' certificate, or server.serverCert.secretName" -}}
{{- end -}}
{{- if and (not $v.global.tls.caCert.secretName) (or $v.global.tls.caKey.secretName $v.server.serverCert.secretName) -}}
{{- fail "global.tls.caKey.secretName and server.serverCert.secretName need global.tls.caCert.secretName" -}}
{{- end -}}
{{- if and $v.global.tls.caKey.secretName $v.server.serverCert.secretName -}}
{{- fail "global.tls.caKey.secretName and server.serverCert.secretName exclude each other: the operator signs the certificate with the key" -}}
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
{{- include "legate.checkFederation" . -}}
{{- include "legate.checkPeering" . -}}
{{- if and $v.global.metrics.serviceMonitor.enabled (not $v.global.metrics.enabled) -}}
{{- fail "global.metrics.serviceMonitor.enabled needs global.metrics.enabled" -}}
{{- end -}}
{{- end -}}

{{/* Checks of peering with other clusters */}}
{{- define "legate.checkPeering" -}}
{{- $v := .Values -}}
{{- $peering := $v.global.peering -}}
{{- if $peering.enabled -}}
{{- if not $v.global.tls.enabled -}}
{{- fail "global.peering.enabled needs global.tls.enabled: servers of other clusters know these by their certificates" -}}
{{- end -}}
{{- if not $v.meshGateway.enabled -}}
{{- fail "global.peering.enabled needs meshGateway.enabled: services of other clusters are called through mesh gateways" -}}
{{- end -}}
{{- if and (has "*" $peering.k8sAllowNamespaces) (gt (len $peering.k8sAllowNamespaces) 1) -}}
{{- fail "global.peering.k8sAllowNamespaces has * and other namespaces: leave one of them out" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks of several datacenters */}}
{{- define "legate.checkFederation" -}}
{{- $v := .Values -}}
{{- $global := $v.global -}}
{{- $federation := $global.federation -}}
{{- $acls := $global.acls -}}
{{- $secondary := include "legate.secondary" . -}}
{{- if and $global.tls.caKey.secretName (not (and $global.tls.enabled (include "legate.servers" .))) -}}
{{- fail "global.tls.caKey.secretName needs global.tls.enabled and the chart's own servers, whose certificate it signs" -}}
{{- end -}}
{{- if $federation.enabled -}}
{{- if not (include "legate.servers" .) -}}
{{- fail "global.federation.enabled needs the chart's own servers: configure external servers yourself (docs/federation.md)" -}}
{{- end -}}
{{- if not $global.tls.enabled -}}
{{- fail "global.federation.enabled needs global.tls.enabled: servers of other datacenters are known by their certificates" -}}
{{- end -}}
{{- if not $v.meshGateway.enabled -}}
{{- fail "global.federation.enabled needs meshGateway.enabled: servers of other datacenters are reached through mesh gateways" -}}
{{- end -}}
{{- if not (include "legate.operator" .) -}}
{{- fail "global.federation.enabled needs the operator: set connectInject.enabled" -}}
{{- end -}}
{{- if $global.adminPartitions.enabled -}}
{{- fail "global.federation.enabled and global.adminPartitions.enabled exclude each other" -}}
{{- end -}}
{{- else if or $federation.createFederationSecret $federation.primaryDatacenter $federation.primaryGateways $federation.k8sAuthMethodHost $acls.replicationToken.secretName -}}
{{- fail "the other values of global.federation, and global.acls.replicationToken, need global.federation.enabled" -}}
{{- end -}}
{{- if and $acls.createReplicationToken (not $acls.manageSystemACLs) -}}
{{- fail "global.acls.createReplicationToken needs global.acls.manageSystemACLs" -}}
{{- end -}}
{{- if $secondary -}}
{{- if or $federation.createFederationSecret $acls.createReplicationToken -}}
{{- fail "global.federation.createFederationSecret and global.acls.createReplicationToken are for the primary datacenter: global.federation.primaryDatacenter is another one here" -}}
{{- end -}}
{{- if not $global.tls.caCert.secretName -}}
{{- fail "a secondary datacenter needs the CA of the primary: set global.tls.caCert.secretName and global.tls.caKey.secretName to a copy of the primary's Secret (docs/federation.md)" -}}
{{- end -}}
{{- if not $federation.primaryGateways -}}
{{- fail "a secondary datacenter needs global.federation.primaryGateways: mesh gateways of the primary, such as gateway.dc1.example.com:443" -}}
{{- end -}}
{{- if $acls.manageSystemACLs -}}
{{- if not $acls.replicationToken.secretName -}}
{{- fail "a secondary datacenter with global.acls.manageSystemACLs needs global.acls.replicationToken.secretName: the token of the primary" -}}
{{- end -}}
{{- if $acls.bootstrapToken.secretName -}}
{{- fail "global.acls.bootstrapToken is for the primary datacenter: secondaries have its tokens" -}}
{{- end -}}
{{- if not $federation.k8sAuthMethodHost -}}
{{- fail "a secondary datacenter with global.acls.manageSystemACLs needs global.federation.k8sAuthMethodHost: the address of this cluster's API server, at which the servers of the primary reach it" -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- if or $federation.primaryGateways $federation.k8sAuthMethodHost $acls.replicationToken.secretName -}}
{{- fail "global.federation.primaryGateways, global.federation.k8sAuthMethodHost and global.acls.replicationToken are for secondary datacenters: set global.federation.primaryDatacenter" -}}
{{- end -}}
{{- if $federation.createFederationSecret -}}
{{- if $v.server.serverCert.secretName -}}
{{- fail "global.federation.createFederationSecret needs the key of the CA: set global.tls.caKey.secretName instead of server.serverCert.secretName" -}}
{{- end -}}
{{- if and $acls.manageSystemACLs (not $acls.createReplicationToken) -}}
{{- fail "global.federation.createFederationSecret with global.acls.manageSystemACLs needs global.acls.createReplicationToken: the Secret has that token" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
