service {
  name = "web"
  port = 80
  tags = ["b", "a"]
  check {
    id       = "web-ttl"
    name     = "ttl"
    ttl      = "60s"
  }
}
