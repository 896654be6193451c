//! Tables, indexes, blocking queries and the change feed of the control plane.
