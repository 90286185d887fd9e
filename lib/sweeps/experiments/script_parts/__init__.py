"""The pieces of which `lib.sweeps.experiments.exported_script` puts a script together: real code, checked as all
other."""
