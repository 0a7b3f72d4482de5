/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Where probes find arguments and results: the registers of the ABI of C, and of Go's own. */
#ifndef OBI_TLS_REGISTERS_H
#define OBI_TLS_REGISTERS_H

#if defined(__TARGET_ARCH_x86)
#define TLS_ARGUMENT_1(registers) ((registers)->di)
#define TLS_ARGUMENT_2(registers) ((registers)->si)
#define TLS_ARGUMENT_3(registers) ((registers)->dx)
#define TLS_ARGUMENT_4(registers) ((registers)->cx)
#define TLS_ARGUMENT_5(registers) ((registers)->r8)
#define TLS_RESULT(registers) ((registers)->ax)
#define TLS_STACK(registers) ((registers)->sp)
/* Of Go's own ABI, and what is running. */
#define GO_ARGUMENT_1(registers) ((registers)->ax)
#define GO_ARGUMENT_2(registers) ((registers)->bx)
#define GO_ARGUMENT_4(registers) ((registers)->di)
#define GO_RUNNING(registers) ((registers)->r14)
#elif defined(__TARGET_ARCH_arm64)
#define TLS_ARGUMENT_1(registers) ((registers)->regs[0])
#define TLS_ARGUMENT_2(registers) ((registers)->regs[1])
#define TLS_ARGUMENT_3(registers) ((registers)->regs[2])
#define TLS_ARGUMENT_4(registers) ((registers)->regs[3])
#define TLS_ARGUMENT_5(registers) ((registers)->regs[4])
#define TLS_RESULT(registers) ((registers)->regs[0])
#define TLS_STACK(registers) ((registers)->sp)
#define GO_ARGUMENT_1(registers) ((registers)->regs[0])
#define GO_ARGUMENT_2(registers) ((registers)->regs[1])
#define GO_ARGUMENT_4(registers) ((registers)->regs[3])
#define GO_RUNNING(registers) ((registers)->regs[28])
#endif

#endif
