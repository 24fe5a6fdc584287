"""Whose partner is whose: names, mapping files, shards of parallel ranks; rows judged, and msprobe's table."""
