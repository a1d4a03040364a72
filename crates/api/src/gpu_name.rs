//! Names of GPUs, as people and makers write them: `a100-80g`, `NVIDIA-A100-SXM4-80GB`.

/// Lower case, split at whatever is no letter or digit; amounts of memory in one spelling.
pub fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(|word| {
            let word = word.to_ascii_lowercase();
            gigabytes(&word).map_or(word, |number| format!("{number}g"))
        })
        .collect()
}

/// `80g`, `80gb` and `80gib` are all eighty. More than any GPU will have is part of a name.
pub fn gigabytes(word: &str) -> Option<u64> {
    let digits = word.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = word.split_at(digits);
    let number = number.parse().ok().filter(|number| *number < 100_000)?;
    matches!(unit, "g" | "gb" | "gib").then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_in_every_spelling() {
        assert_eq!(
            words("NVIDIA-A100-SXM4-80GB"),
            ["nvidia", "a100", "sxm4", "80g"]
        );
        assert_eq!(words("a100 80GiB"), ["a100", "80g"]);
        for (word, read) in [
            ("80g", Some(80)),
            ("80gb", Some(80)),
            ("a100", None),
            ("4090", None),
            ("99999999999g", None),
        ] {
            assert_eq!(gigabytes(word), read, "{word}");
        }
    }
}
