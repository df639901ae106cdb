"""Parts shared by the HTTP and the gRPC front end: API keys, TLS, sockets and headers."""
