"""How each family's ``config.json`` names the parts that all of them share: one small adapter a family."""
