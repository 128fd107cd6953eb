"""The command line `soup`: `app` finds the verb, `verbs` has one module each, the rest is what verbs share."""
