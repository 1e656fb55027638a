"""The measurements behind `statevisor bench`: one file a subject, each returns one report."""
