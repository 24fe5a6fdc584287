"""Is it close enough? Every standard in use by name, with its source; a verdict gives its parts."""
