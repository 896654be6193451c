Kind = "service-router"
Name = "web"
Routes = [
  {
    Match { HTTP { PathPrefix = "/x" } }
    Destination { Service = "api" }
  },
]
