"""Pages for a browser, drawn on the server: what a key may see of models, soups and jobs, and a form to cook.

`site` puts them into the application. They call what the routes of the API call, and ask for the same scopes.
"""
