service_prefix "" {
  policy = "read"
}
