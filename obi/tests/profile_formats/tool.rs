//! What foreign tools make of our files: Go's pprof, and the official checker of OTLP profiles.
