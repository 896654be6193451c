node_name = "n1"
domain = "Mesh.Example."
alt_domain = "consul"
dns_config {
  only_passing = true
  node_ttl = "5s"
  service_ttl {
    "*" = "1s"
    "web*" = "20s"
    "many" = "0s"
  }
  soa {
    min_ttl = 30
    refresh = 1
    retry = 2
    expire = 3
  }
  udp_answer_limit = 5
  a_record_limit = 40
  enable_truncate = true
  disable_compression = true
  enable_additional_node_meta_txt = false
}
