//! Names of real programs, made at random and compiled here, against what other tools and the programs themselves say.
//!
//! In: compilers of C, C++, Rust and Go, and binutils. Out: a failure that names program, address and both answers.

mod c;
mod go;
mod made;
mod program;
mod rust;
