//! Connection limits of each API. Pure: derives the limits from the settings and the limit of open files.

use legate_runtime::admission::ApiLimit;

/// File descriptors for other purposes: listeners, the store's files, connections that are being rejected,
/// certificate files.
const OWN_FILES: usize = 256;

/// Connection limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The HTTP API. Default 4,096 in total, and 200 per address like Consul's `http_max_conns_per_client`.
    pub http: ApiLimit,
    /// The gRPC API, both ports together. Default 16,384 in total, and a quarter of that per address.
    pub grpc: ApiLimit,
    /// DNS over TCP. Default 256 in total, and a quarter of that per address.
    pub dns: ApiLimit,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let limit = |in_all, per_address| ApiLimit {
            in_all,
            per_address,
        };
        Self {
            http: limit(4_096, 200),
            grpc: limit(16_384, 4_096),
            dns: limit(256, 64),
        }
    }
}

impl ConnectionLimits {
    /// Lowers the limits to what a process with `files` open files supports. HTTP retains up to a quarter of
    /// them and DNS up to an eighth, so that gRPC connections cannot exhaust them.
    pub(crate) fn within(self, files: u64) -> Self {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let left = files.saturating_sub(OWN_FILES).max(files / 2);
        let wanted = [self.http, self.grpc, self.dns].map(|limit| limit.in_all);
        if wanted.into_iter().fold(0, usize::saturating_add) <= left {
            return self;
        }
        let http = self.http.at_most((left / 4).max(1));
        let dns = self.dns.at_most((left / 8).max(1));
        let grpc = self
            .grpc
            .at_most((left - http.in_all.min(left) - dns.in_all.min(left)).max(1));
        Self { http, grpc, dns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_limit_of_files_changes_nothing() {
        let asked = ConnectionLimits::default();
        assert_eq!(asked.within(65_536), asked);
        assert_eq!(asked.within(u64::MAX), asked);
    }

    #[test]
    fn a_small_limit_of_files_leaves_room_for_every_api() {
        let fitted = ConnectionLimits::default().within(1_024);
        assert_eq!((fitted.http.in_all, fitted.dns.in_all), (192, 96));
        assert_eq!((fitted.grpc.in_all, fitted.grpc.per_address), (480, 120));
        for files in [0, 1, 16, 300, 1_024, 4_096, 20_000] {
            let fitted = ConnectionLimits::default().within(files);
            let all = [fitted.http, fitted.grpc, fitted.dns];
            assert!(
                all.iter()
                    .all(|one| one.per_address >= 1 && one.in_all >= 1)
            );
            let sum: usize = all.iter().map(|one| one.in_all).sum();
            assert!(sum as u64 <= files.max(3), "{sum} of {files}");
        }
    }
}
