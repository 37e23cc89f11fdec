//! Files into profiles.
