"""The verbs of `soup`, one module each; `service.cli.app` imports a module only when its verb is called."""
