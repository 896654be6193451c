TemplatedPolicy "builtin/service" {
  Name = "web"
}
