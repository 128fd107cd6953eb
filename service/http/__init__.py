"""How the registry is reached over HTTP: the application, who may pass, the routes, and what they answer."""
