"""Clients of a server: one request, a load of many, the whole way from export to answers. No torch at import."""
