node_name = "n1"
acl {
  enabled = true
  default_policy = "deny"
  tokens {
    initial_management = "11111111-2222-3333-4444-555555555555"
    dns = "aaaaaaaa-2222-3333-4444-555555555555"
  }
}
