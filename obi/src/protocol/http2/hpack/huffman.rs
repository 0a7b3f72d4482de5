//! Huffman-coded strings of header blocks (RFC 7541 §5.2).
//!
//! In: coded bytes. Out: the bytes they stand for, one by one. The code is canonical, so the lengths alone define it;
//! tables are made of them at compile time. Refuses to know what the strings mean.

use super::Malformed;

/// Length of each symbol's code in bits (RFC 7541 Appendix B); the last one is EOS.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SYMBOLS: usize = 257;
const EOS: u16 = 256;
/// Codes up to this length are found by one look-up; text has few longer ones.
const FAST_BITS: u32 = 10;
const LONGEST: usize = 30;

struct Codes {
    /// By the first bits: `symbol << 4 | length`; 0 where the code is longer.
    fast: [u16; 1 << FAST_BITS],
    /// By length: one beyond its last code, moved to the upper end of 32 bits.
    limit: [u32; LONGEST + 1],
    /// By length: what to add to a code of it to get its place in `symbols`.
    offset: [i32; LONGEST + 1],
    /// Symbols by length, then by value.
    symbols: [u16; SYMBOLS],
}

static CODES: Codes = codes();

const fn codes() -> Codes {
    let mut made = Codes {
        fast: [0; 1 << FAST_BITS],
        limit: [0; LONGEST + 1],
        offset: [0; LONGEST + 1],
        symbols: [0; SYMBOLS],
    };
    let (mut code, mut place, mut length) = (0_u32, 0, 1);
    while length <= LONGEST {
        code <<= 1;
        made.offset[length] = place as i32 - code as i32;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                made.symbols[place] = symbol as u16;
                if length <= FAST_BITS as usize {
                    let spare = FAST_BITS - length as u32;
                    let mut rest = 0;
                    while rest < 1 << spare {
                        made.fast[((code << spare) + rest) as usize] = (symbol as u16) << 4 | length as u16;
                        rest += 1;
                    }
                }
                place += 1;
                code += 1;
            }
            symbol += 1;
        }
        made.limit[length] = ((code as u64) << (32 - length)) as u32;
        length += 1;
    }
    made
}

/// Decodes a string.
///
/// # Errors
/// When the padding is not of ones or longer than seven bits, or EOS stands in the string.
pub(super) fn decode(coded: &[u8], mut emit: impl FnMut(u8)) -> Result<(), Malformed> {
    // The last `n_bits` bits of `window` are those not decoded yet.
    let (mut window, mut n_bits) = (0_u64, 0_u32);
    let mut bytes = coded.iter();
    loop {
        while n_bits <= 56 {
            let Some(byte) = bytes.next() else { break };
            window = window << 8 | u64::from(*byte);
            n_bits += 8;
        }
        if n_bits == 0 {
            return Ok(());
        }
        let (symbol, length) = first_symbol(upper(window, n_bits));
        if length > n_bits {
            // No whole code is left: padding.
            let is_padding = n_bits < 8 && upper(window, n_bits) == u32::MAX;
            return if is_padding { Ok(()) } else { Err(Malformed) };
        }
        emit(u8::try_from(symbol).map_err(|_| Malformed)?);
        n_bits -= length;
    }
}

/// The next 32 bits, followed by ones where there are fewer.
fn upper(window: u64, n_bits: u32) -> u32 {
    match n_bits {
        32.. => (window >> (n_bits - 32)) as u32,
        _ => (window << (32 - n_bits)) as u32 | u32::MAX >> n_bits,
    }
}

/// The symbol whose code `bits` start with, and the length of the code.
#[inline]
fn first_symbol(bits: u32) -> (u16, u32) {
    let fast = CODES.fast[(bits >> (32 - FAST_BITS)) as usize];
    if fast != 0 { (fast >> 4, u32::from(fast & 15)) } else { long_symbol(bits) }
}

#[cold]
fn long_symbol(bits: u32) -> (u16, u32) {
    for length in FAST_BITS as usize + 1..LONGEST {
        if bits < CODES.limit[length] {
            let code = (bits >> (32 - length)) as i32;
            return (CODES.symbols[(code + CODES.offset[length]) as usize], length as u32);
        }
    }
    let code = (bits >> (32 - LONGEST)) as i32;
    let place = (code + CODES.offset[LONGEST]) as usize;
    (CODES.symbols.get(place).copied().unwrap_or(EOS), LONGEST as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(coded: &[u8], expected: Result<&str, Malformed>) {
        let mut text = Vec::new();
        let outcome = decode(coded, |byte| text.push(byte)).map(|()| str::from_utf8(&text).unwrap());
        assert_eq!(outcome, expected, "{coded:x?}");
    }

    #[test]
    fn strings_of_the_specification() {
        check(&[], Ok(""));
        check(
            &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
            Ok("www.example.com"),
        );
        check(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], Ok("no-cache"));
        check(&[0x64, 0x02], Ok("302"));
        // Padding of zeros, of a whole byte, and EOS itself.
        check(&[0x64, 0x02, 0xff], Err(Malformed));
        check(&[0x18], Err(Malformed));
        check(&[0xff], Err(Malformed));
        check(&[0xff, 0xff, 0xff, 0xff], Err(Malformed));
    }
}
