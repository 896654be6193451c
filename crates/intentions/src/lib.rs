//! Intentions and their precedence: who may call whom.
