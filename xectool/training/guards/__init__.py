"""What keeps a fault from doing harm while a run goes on; one file a family of guards.

`xectool.config.guard_catalogue` lists them all with period and action.
"""
