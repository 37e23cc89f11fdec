/* An allocator whose code lies in memory of no file. */
#include <string.h>
#include <sys/mman.h>

typedef void *(*lua_Alloc)(void *, void *, size_t, size_t);

/* `target`, called by a few instructions in anonymous memory, as a JIT compiler would make them. */
static lua_Alloc anonymous(lua_Alloc target)
{
	/* mov rax, ADDRESS; jmp rax */
	unsigned char code[] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0 };
	unsigned char *memory =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	memcpy(code + 2, &target, sizeof(target));
	memcpy(memory, code, sizeof(code));
	return (lua_Alloc)memory;
}
