"""The pieces of which `lib.experiments.exported_script` puts a script together: real code, checked as all other."""
