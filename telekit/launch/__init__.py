"""A job from and to launch files of other frameworks."""
