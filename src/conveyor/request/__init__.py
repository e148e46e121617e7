"""Clients of a server: one request, a load of many, or export, serve and request in one call. No torch at import."""
