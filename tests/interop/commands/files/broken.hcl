Kind = "service-defaults" Name = "web" Protcol = "http"
