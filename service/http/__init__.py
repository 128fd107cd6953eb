"""The HTTP server: the application, authentication, routes, bodies and pages."""
