//! Extents on the command line: `X,Y,Z`, of which the later ones may be left out.

use partita_model::Dim3;

/// Reads an extent; no component may be zero.
pub fn parse(text: &str) -> Result<Dim3, String> {
    let component = |part: &str| {
        let value = part.parse().ok().filter(|value| *value > 0);
        value.ok_or_else(|| {
            format!("`{part}` is not a whole number above zero (write for example 64,1,1)")
        })
    };
    let parts: Vec<u32> = text.split(',').map(component).collect::<Result<_, _>>()?;
    match parts[..] {
        [x] => Ok(Dim3::linear(x)),
        [x, y] => Ok(Dim3::new(x, y, 1)),
        [x, y, z] => Ok(Dim3::new(x, y, z)),
        _ => Err("expected at most three extents: X,Y,Z".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents() {
        let good = |text: &str, dim: Dim3| assert_eq!(parse(text), Ok(dim), "{text}");
        good("7", Dim3::linear(7));
        good("2,3", Dim3::new(2, 3, 1));
        good("4294967295,65535,1", Dim3::new(u32::MAX, 65535, 1));
        let bad = |text: &str, part: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        bad("", "`` is not");
        bad("1,,1", "`` is not");
        bad("1,0,1", "`0` is not");
        bad("1, 2", "` 2` is not");
        bad("-1", "`-1` is not");
        bad("1,x", "`x` is not");
        bad("4294967296", "`4294967296` is not");
        bad("1,2,3,4", "at most three");
    }
}
