{{- /* Makes the document that is used without a template. Values that can hold a quote
       go through %q; what ends in JSON is JSON already. */ -}}
{
  "admin": {
    {{- if .AdminAccessLogConfig }}
    "access_log": [
      {{- range $index, $log := .AdminAccessLogConfig }}
      {{- if $index }},{{ end }}
      {{ $log }}
      {{- end }}
    ],
    {{- end }}
    "address": {
      "socket_address": {
        "address": "{{ .AdminBindAddress }}",
        "port_value": {{ .AdminBindPort }}
      }
    }
  },
  "node": {
    "cluster": {{ printf "%q" .ProxyCluster }},
    "id": {{ .ProxyID | printf "%q" }},
    "metadata": {
      {{- with .NodeName }}
      "node_name": {{ printf "%q" . }},
      {{- end }}
      "namespace": "{{ if ne .Namespace "" }}{{ .Namespace }}{{ else }}default{{ end }}",
      "partition": "{{ or .Partition "default" }}"
    }
  },
  "layered_runtime": {
    "layers": [{ "name": "base", "static_layer": { "re2.max_program_size.error_level": 1048576 } }]
  },
  "static_resources": {
    "clusters": [
      {
        {{- $http2 := "envoy.extensions.upstreams.http.v3.HttpProtocolOptions" }}
        "name": "{{ .LocalAgentClusterName }}",
        "connect_timeout": "1s",
        "type": "STATIC",
        {{- if .AgentTLS }}
        "transport_socket": { "name": "tls", "trusted_ca": "{{ .AgentCAPEM }}" },
        {{- end }}
        "typed_extension_protocol_options": {
          "{{ $http2 }}": {
            "@type": "type.googleapis.com/{{ $http2 }}",
            "explicit_http_config": { "http2_protocol_options": {} }
          }
        },
        "load_assignment": {
          "cluster_name": "{{ .LocalAgentClusterName }}",
          "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": {
            {{- if .AgentSocket -}}
              "pipe": { "path": "{{ .GRPC.AgentSocket }}" }
            {{- else -}}
              "socket_address": { "address": "{{ .AgentAddress }}", "port_value": {{ .GRPC.AgentPort }} }
            {{- end -}}
          } } }] }]
        }
      }
      {{- if .StaticClustersJSON -}}
      ,
      {{ .StaticClustersJSON }}
      {{- end }}
    ]
    {{- if .StaticListenersJSON -}}
    , "listeners": [ {{ .StaticListenersJSON }} ]
    {{- end }}
    {{- if .StaticSecretsJSON -}}
    , "secrets": [ {{ .StaticSecretsJSON }} ]
    {{- end }}
  },
  {{- if .StatsSinksJSON }}
  "stats_sinks": [ {{ .StatsSinksJSON }} ],
  {{- end }}
  {{- if .StatsConfigJSON }}
  "stats_config": {{ .StatsConfigJSON }},
  {{- end }}
  {{- if not (eq .StatsFlushInterval "") }}
  "stats_flush_interval": "{{ .StatsFlushInterval }}",
  {{- end }}
  {{- if .TracingConfigJSON }}
  "tracing": {{ .TracingConfigJSON }},
  {{- end }}
  "dynamic_resources": {
    {{- $source := `{ "ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3" }` }}
    "lds_config": {{ $source }},
    "cds_config": {{ $source }},
    "ads_config": {
      "api_type": "DELTA_GRPC",
      "transport_api_version": "V3",
      "grpc_services": [
        {
          {{- if .Token }}
          "initial_metadata": [{ "key": "x-consul-token", "value": "{{ .Token }}" }],
          {{- end }}
          "envoy_grpc": { "cluster_name": "{{ .LocalAgentClusterName }}" }
        }
      ]
    }
  }
}
