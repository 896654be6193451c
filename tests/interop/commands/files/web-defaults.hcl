Kind     = "service-defaults"
Name     = "web"
Protocol = "http"
