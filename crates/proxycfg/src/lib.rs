//! One state per connected proxy: watches in, snapshots out.
