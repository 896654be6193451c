//! Compares an output with the expected one in the document.
//!
//! `…` matches any text within a line, and alone on a line any lines. Empty lines and the width of
//! columns are ignored.

/// The wildcard.
const ANYTHING: &str = "…";

/// The expected and actual output, if they differ.
#[must_use]
pub fn difference(shown: &str, seen: &str) -> Option<String> {
    let same = lines_match(&lines(shown), &lines(seen));
    (!same).then(|| format!("the document shows:\n{shown}and this was seen:\n{seen}"))
}

/// Non-empty lines with single spaces between words.
fn lines(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect()
}

fn lines_match(shown: &[String], seen: &[String]) -> bool {
    let Some((first, rest)) = shown.split_first() else {
        return seen.is_empty();
    };
    if first == ANYTHING {
        return (0..=seen.len()).any(|skipped| lines_match(rest, &seen[skipped..]));
    }
    let Some((line, others)) = seen.split_first() else {
        return false;
    };
    line_matches(first, line) && lines_match(rest, others)
}

fn line_matches(shown: &str, seen: &str) -> bool {
    let Some((start, rest)) = shown.split_once(ANYTHING) else {
        return shown == seen;
    };
    let Some(seen) = seen.strip_prefix(start) else {
        return false;
    };
    let ends = seen.char_indices().map(|(index, _)| index);
    let mut ends = ends.chain([seen.len()]);
    ends.any(|end| line_matches(rest, &seen[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_stand_for_anything_and_nothing_else_does() {
        for (shown, seen) in [
            ("a\nb\n", "a\n\nb\n"),
            (
                "NAME   AGE\nx      …\n",
                "NAME                AGE\nx                   5s\n",
            ),
            ("pod-… is ready in …s", "pod-12-x is ready in 5s"),
            ("a\n…\nz", "a\nb\nc\nz"),
            ("a\n…", "a"),
            ("…", ""),
            ("… a …", "x a a y"),
            ("200 OK: … asked", "200 OK: backend-ü asked"),
        ] {
            assert_eq!(difference(shown, seen), None);
        }
        for (shown, seen) in [
            ("a", "a\nb"),
            ("a\nb", "a"),
            ("a", "ab"),
            ("a…", "ba"),
            ("…a", "ab"),
            ("a\n…\nz", "a\nb"),
            ("…\na", "b"),
            ("", "a"),
        ] {
            assert!(difference(shown, seen).is_some(), "{shown}: {seen}");
        }
    }
}
