"""The server and the client: HTTP and gRPC in front, engines in processes of their own behind. No torch in front."""
