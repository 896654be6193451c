node_name = "n1"
