// Exists so that a target can own a precompiled header, which other targets share.
