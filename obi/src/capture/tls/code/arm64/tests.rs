//! Functions of C and of Go, put together of words.

use proptest::prelude::*;

use super::*;

const HERE: u64 = 0x1000;
const NOTHING: u32 = 0xd503_201f;

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_jump_of_the_check_is_found_where_arguments_live() {
    let check = |words: &[u32], expected: Option<u64>| {
        let found = Function::whole(HERE, &code(words)).stack_check();
        assert_eq!(found, expected, "{words:08x?}");
    };
    // b.ls +64
    const JUMP: u32 = 0x5400_0209;
    check(&[LOAD_GUARD, COMPARE_STACK, JUMP, RETURN], Some(HERE + 8));
    // sub x17,sp,#0x80
    check(&[LOAD_GUARD, 0xd102_03f1, COMPARE_LOWERED, JUMP], Some(HERE + 12));
    check(&[LOAD_GUARD, COPY_STACK, COMPARE_LOWERED, JUMP], Some(HERE + 12));
    // subs x17,sp,#0x2,lsl #12; b.lo
    check(&[LOAD_GUARD, 0xf140_0bf1, 0x5400_0203, COMPARE_LOWERED, JUMP], Some(HERE + 16));
    // Another jump (b.hi); another word of the goroutine; another register; something before; a jump into it.
    check(&[LOAD_GUARD, COMPARE_STACK, 0x5400_0208], None);
    check(&[0xf940_0f90, COMPARE_STACK, JUMP], None);
    check(&[0xf940_0b91, COMPARE_STACK, JUMP], None);
    check(&[NOTHING, LOAD_GUARD, COMPARE_STACK, JUMP], None);
    check(&[LOAD_GUARD, COMPARE_STACK, JUMP, 0x17ff_fffe], None);
    check(&[LOAD_GUARD, COMPARE_STACK], None);
    check(&[], None);
}

#[test]
fn arguments_and_results_are_found_in_functions_of_c() {
    // stp x29,x30,[sp,#-48]!; mov x29,sp; adrp x3,+0; ldr x3,[x3,#8]; tbnz w2,#31,+20; bl; ldp x29,x30,[sp],#48; ret
    const READ: [u32; 10] = [
        0xa9bd_7bfd,
        0x9100_03fd,
        0x9000_0003,
        0xf940_0463,
        0x37f8_00a2,
        0x9400_0100,
        0xa8c3_7bfd,
        RETURN,
        NOTHING,
        // mov w0,#-1; b to the load of the pair: below.
        0x1280_0000,
    ];
    let check = |change: &[(usize, u32)], more: &[u32], (entry, returns): (Option<u64>, Option<&[u64]>)| {
        let mut words = READ.to_vec();
        change.iter().for_each(|(at, word)| words[*at] = *word);
        words.extend(more);
        let function = Function::whole(HERE, &code(&words));
        let found = (function.entry(3), function.returns(true));
        assert_eq!(found, (entry, returns.map(<[u64]>::to_vec)), "{words:08x?}");
    };
    // b -16
    const BACK: u32 = 0x17ff_fffc;
    let (at, end) = (Some(HERE + 8), Some(&[HERE + 28][..]));
    check(&[], &[BACK], (at, end));
    // The third argument is overwritten before: mov w2,#0. It is a fourth: mov w3,#0.
    check(&[(1, 0x5280_0002)], &[BACK], (None, end));
    check(&[(1, 0x5280_0003)], &[BACK], (at, end));
    // Another return; the function ends in another one: b +1024; br x1; its end is not there.
    check(&[], &[RETURN], (at, Some(&[HERE + 28, HERE + 40])));
    check(&[], &[0x1400_0100], (at, None));
    check(&[], &[0xd61f_0020], (at, None));
    check(&[], &[NOTHING], (at, None));
    // It ends in a call that does not come back.
    check(&[], &[0x9400_0100], (at, end));
    assert_eq!(Function::whole(HERE, &code(&[0x9400_0100])).returns(false), None);
    // Nothing that is simulated before something that is jumped to.
    check(&[(2, NOTHING), (4, NOTHING)], &[0x17ff_fff7], (None, end));
    assert_eq!(Function::whole(HERE, &[]).entry(0), None);
    assert_eq!(Function::whole(HERE, &[]).returns(true), None);
}

/// A function with a frame of 0x60 bytes that runs `store`, calls `HERE + 0x400`, and then runs `behind`.
fn reading(store: &[u32], behind: &[u32]) -> Vec<u8> {
    // str x30,[sp,#-0x60]!
    let mut words = vec![LOAD_GUARD, COMPARE_STACK, 0, 0xf81a_0ffe, SAVE_POINTER, SET_POINTER];
    words.extend(store);
    let distance = 0x100 - u32::try_from(words.len()).unwrap();
    words.push(0x9400_0000 | distance);
    words.extend(behind);
    // ldp x29,x30,[sp,#-8]; add sp,sp,#0x60; ret
    words.extend([0xa97f_fbfd, 0x9101_83ff, RETURN]);
    words[2] = 0x5400_0009 | u32::try_from(words.len() - 2).unwrap() << 5;
    // The call of what makes room; a jump to the beginning.
    words.extend([
        0x9400_0400,
        0x1400_0000 | u32::try_from(words.len() + 1).unwrap().wrapping_neg() & 0x03ff_ffff,
    ]);
    code(&words)
}

#[test]
fn a_record_is_reported_where_its_object_is_known() {
    // str x0,[sp,#0x68]: above the frame and the caller's return address.
    const STORE: u32 = 0xf900_37e0;
    // cbnz x4,+8
    const LOOK: [u32; 2] = [0xb500_0044, NOTHING];
    let check = |store: &[u32], behind: &[u32], expected: bool| {
        let found = Function::whole(HERE, &reading(store, behind)).received(HERE + 0x400);
        let jump = HERE + 4 * (6 + store.len() as u64 + 1);
        assert_eq!(found.is_some(), expected, "{store:08x?} {behind:08x?}");
        if let Some(found) = found {
            assert!(found.address >= jump && found.home == 0x70, "{found:?}");
        }
    };
    check(&[STORE], &LOOK, true);
    // What does not touch it: stp x1,x2,[sp,#0x70]; a result stored: str x0,[sp,#8].
    check(&[STORE, 0xa907_0be1], &[0xf900_07e0, LOOK[0], LOOK[1]], true);
    // It is never stored, elsewhere, from another register, half, or overwritten before or behind.
    check(&[NOTHING], &LOOK, false);
    check(&[0xf900_33e0], &LOOK, false);
    check(&[0xf900_37e1], &LOOK, false);
    check(&[0xb900_6be0], &LOOK, false);
    check(&[0xd280_0000, STORE], &LOOK, false);
    check(&[STORE, 0xf900_37e1], &LOOK, false);
    // strb wzr,[sp,#0x6b]; stp x1,x2,[sp,#0x60]; str q0,[sp,#0x60]; stur xzr,[x29,#0x70]
    check(&[STORE, 0x3901_afff], &LOOK, false);
    check(&[STORE, 0xa906_0be1], &LOOK, false);
    check(&[STORE, 0x3d80_1be0], &LOOK, false);
    check(&[STORE, 0xf807_03bf], &LOOK, false);
    // Its address is handed out: add x1,sp,#0x68.
    check(&[STORE, 0x9101_a3e1], &LOOK, false);
    // One way passes the store by: cbz x1,+8. One way that ends does no harm: cbnz x1,+16; the end.
    check(&[0xb400_0041, STORE], &LOOK, false);
    check(&[0xb500_0081, 0xa97f_fbfd, 0x9101_83ff, RETURN, STORE], &LOOK, true);
    // The stack pointer moves meanwhile: sub sp,sp,#0x10; str x1,[sp,#-16]!. So does the frame's: mov x29,x1.
    check(&[STORE, 0xd100_43ff], &LOOK, false);
    check(&[STORE, 0xf81f_0fe1], &LOOK, false);
    check(&[STORE, 0xaa01_03fd], &LOOK, false);
    // The error is not looked at; a result is overwritten first (mov x3,#0; ldp x2,x5,[sp]); another is looked at;
    // only half of it is.
    check(&[STORE], &[NOTHING; 12], false);
    check(&[STORE], &[0xd280_0003, LOOK[0], LOOK[1]], false);
    check(&[STORE], &[0xa940_17e2, LOOK[0], LOOK[1]], false);
    check(&[STORE], &[0xb500_0043, NOTHING], false);
    check(&[STORE], &[0x3500_0044, NOTHING], false);
}

#[test]
fn a_large_frame_is_known_too() {
    // sub x17,sp,#0x180; b.ls over all; sub x20,sp,#0x200; …; str x0,[sp,#0x208]; bl; cbz x4; …; add sp,sp,#0x200
    let mut words =
        vec![LOAD_GUARD, 0xd106_03f1, COMPARE_LOWERED, 0x5400_0189, 0xd108_03f4, SAVE_PAIR, SET_STACK];
    words.extend([
        SET_POINTER,
        0xf901_07e0,
        0x9400_00f7,
        0xb400_0044,
        NOTHING,
        0xa97f_fbfd,
        0x9108_03ff,
        RETURN,
    ]);
    words.extend([0x9400_0400, 0x17ff_fff0]);
    let found = Function::whole(HERE, &code(&words)).received(HERE + 0x400);
    assert_eq!(found, Some(Received { address: HERE + 40, home: 0x210 }));
}

/// A call of `HERE + 0x400`, then `between`, then one of `HERE + 0x800`.
fn calling(between: &[u32]) -> Vec<u8> {
    let second = 0x200 - u32::try_from(between.len() + 1).unwrap();
    code(&[&[0x9400_0100], between, &[0x9400_0000 | second, RETURN]].concat())
}

#[test]
fn what_is_made_is_handed_on() {
    let check = |between: &[u32], is_found: bool| {
        let found = Function::whole(HERE, &calling(between)).handed_on(HERE + 0x400, HERE + 0x800);
        assert_eq!(found, is_found.then_some(HERE + 4 * (between.len() as u64 + 1)), "{between:08x?}");
    };
    // ldr x0,[x2,#8]
    const FIRST: u32 = 0xf940_0440;
    check(&[COPY_FIRST, FIRST], true);
    check(&[NOTHING, COPY_FIRST], true);
    // Not copied; something else is; overwritten before or behind (mov x1,#1); a jump or a call in between.
    check(&[FIRST], false);
    check(&[FIRST, COPY_FIRST], false);
    check(&[COPY_FIRST, 0xd280_0021], false);
    check(&[COPY_FIRST, 0xb400_0040], false);
    check(&[COPY_FIRST, 0xd63f_0040], false);
}

#[test]
fn numbers_are_found_where_the_creators_is_kept() {
    // str x1,[sp,#0x70]: above the frame, the caller's link and the first argument's home.
    const KEEPS: u32 = 0xf900_3be1;
    // ldr x3,[sp,#0x70]; ldr x3,[x3,#0x98]; ldr x0,[sp,#8]; str x3,[x0,#0x118]
    const LOAD: u32 = 0xf940_3be3;
    const NUMBER: u32 = 0xf940_4c63;
    const MADE: u32 = 0xf940_07e0;
    const STORE: u32 = 0xf900_8c03;
    let check = |keeps: &[u32], behind: &[u32], is_found: bool| {
        let found = Function::whole(HERE, &reading(keeps, behind)).numbers(HERE + 0x400);
        let found = found.map(|it| (it.own, it.creator));
        assert_eq!(found, is_found.then_some((0x98, 0x118)), "{keeps:08x?} {behind:08x?}");
    };
    check(&[KEEPS], &[LOAD, NUMBER, MADE, STORE], true);
    // Together with what is stored beside it: stp x3,x2,[x0,#0x118].
    check(&[KEEPS], &[LOAD, NUMBER, MADE, 0xa911_8803], true);
    // Together with the first argument: stp x0,x1,[sp,#0x68].
    check(&[0xa906_87e0], &[LOAD, NUMBER, MADE, STORE], true);
    // Not kept; something else is put there; not from there; overwritten; of 32 bits; of itself; a call in between.
    check(&[NOTHING], &[LOAD, NUMBER, MADE, STORE], false);
    check(&[KEEPS], &[LOAD, NUMBER, MADE, STORE, 0xf900_3be0], false);
    check(&[KEEPS], &[0xf940_37e3, NUMBER, MADE, STORE], false);
    check(&[KEEPS], &[LOAD, NUMBER, MADE, 0xd280_0003, STORE], false);
    check(&[KEEPS], &[LOAD, 0xb940_9863, MADE, STORE], false);
    check(&[KEEPS], &[LOAD, NUMBER, 0xf900_8c63], false);
    check(&[KEEPS], &[LOAD, NUMBER, 0x9400_0100, MADE, STORE], false);
}

proptest! {
    #[test]
    fn any_code_is_taken(words in prop::collection::vec(any::<u32>(), 0..100), target in 0_u64..400) {
        let words = [&[LOAD_GUARD, COMPARE_STACK, 0x5400_0209, 0xf81a_0ffe, SAVE_POINTER, SET_POINTER][..], &words].concat();
        let function = Function::whole(HERE, &code(&words));
        let received = function.received(HERE + target).map(|it| it.address);
        let returns = function.returns(true).unwrap_or_default();
        let _ = function.numbers(HERE + target);
        let handed = function.handed_on(HERE + 24, HERE + target);
        let places = [function.stack_check(), received, function.entry(3), handed];
        let is_inside = |at: &u64| (HERE..HERE + 4 * words.len() as u64).contains(at);
        prop_assert!(places.iter().flatten().chain(&returns).all(is_inside));
    }
}
