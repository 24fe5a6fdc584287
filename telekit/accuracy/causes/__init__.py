"""Why an operator differs: ratios, places, missing terms, operators done again, optimizer steps read back."""
