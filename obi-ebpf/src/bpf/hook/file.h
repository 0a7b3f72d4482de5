/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* From the descriptors of the current task to files and sockets. */
#ifndef OBI_FILE_H
#define OBI_FILE_H

#include "core/kernel.h"

static __always_inline struct task_struct *current_task(void)
{
#ifdef OBI_PORTABLE
	return (struct task_struct *)bpf_get_current_task();
#else
	return bpf_get_current_task_btf();
#endif
}

static __always_inline struct file *file_of(u64 fd)
{
	struct task_struct *task = current_task();
	struct fdtable *table = READ(task, files, fdt);
	struct file *file = NULL;
	if ((u32)fd < READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), READ(table, fd) + (u32)fd);
	return file;
}

/* The socket behind a file, or NULL when it is something else. */
static __always_inline struct sock *socket_of(struct file *file)
{
	struct socket *socket;
	if (!file || (READ(file, f_inode, i_mode) & MODE_KIND) != MODE_SOCKET)
		return NULL;
	socket = READ(file, private_data);
	return socket ? READ(socket, sk) : NULL;
}

#endif
