{{/* The spelling that templates from Consul's older documentation have: values in plain quotes,
     names of fields in camel case, and fields that Envoy has replaced since. */}}
{ "admin": {
{{- if (not .AdminAccessLogConfig)}} "access_log_path": "{{.AdminAccessLogPath}}",
{{- else}} "access_log": [{{range $at, $log := .AdminAccessLogConfig}}{{if $at}},{{end}}{{$log}}{{end}}],
{{- end}}
    "address": { "socketAddress": { "address": "{{.AdminBindAddress}}", "portValue": {{.AdminBindPort}} } } },
  "node": { "id": "{{.ProxyID}}", "cluster": "{{.ProxyCluster}}",
    "metadata": {
{{- if ne .NodeName ""}} "node_name": "{{.NodeName}}", {{end -}}
      "namespace": "{{if .Namespace}}{{.Namespace}}{{else}}default{{end}}" } },
  "staticResources": { "clusters": [ {
      "name": "{{.LocalAgentClusterName}}", "type": "STATIC", "connectTimeout": "1s",
      "ignoreHealthOnHostRemoval": false, "http2ProtocolOptions": {},
      "loadAssignment": { "clusterName": "{{.LocalAgentClusterName}}", "endpoints": [ { "lbEndpoints": [ {
        "endpoint": { "address": {
{{- if .AgentSocket}} "pipe": { "path": "{{.AgentSocket}}" }
{{- else}} "socketAddress": { "address": "{{.AgentAddress}}", "portValue": {{.AgentPort}} }
{{- end}} } } } ] } ] } }
{{- if .StaticClustersJSON}}, {{.StaticClustersJSON}}{{end}} ]
{{- if .StaticListenersJSON}}, "listeners": [ {{.StaticListenersJSON}} ]{{end}}
{{- if .StaticSecretsJSON}}, "secrets": [ {{.StaticSecretsJSON}} ]{{end}} },
{{- if .StatsSinksJSON}} "statsSinks": [ {{.StatsSinksJSON}} ],{{end}}
{{- if .StatsConfigJSON}} "statsConfig": {{.StatsConfigJSON}},{{end}}
{{- if .StatsFlushInterval}} "statsFlushInterval": "{{.StatsFlushInterval}}",{{end}}
{{- if .TracingConfigJSON}} "tracing": {{.TracingConfigJSON}},{{end}}
  "layeredRuntime": { "layers": [ { "name": "base", "staticLayer": { "re2.max_program_size.error_level": 1048576 } } ] },
  "dynamicResources": {
    "cdsConfig": { "ads": {}, "resourceApiVersion": "V3" }, "ldsConfig": { "ads": {}, "resourceApiVersion": "V3" },
    "adsConfig": { "apiType": "DELTA_GRPC", "transportApiVersion": "V3", "grpcServices": {
      "initialMetadata": [ { "key": "x-consul-token", "value": "{{.Token}}" } ],
      "envoyGrpc": { "clusterName": "{{.LocalAgentClusterName}}" } } } }
}
