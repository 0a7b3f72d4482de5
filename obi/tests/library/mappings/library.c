/* A library with a function. */
#ifdef PADDING
#define TEXT(number) #number
#define SKIP(number) ".text\n.skip " TEXT(number) "\n"
__asm__(SKIP(PADDING));
#endif

int in_library(void)
{
	return 5;
}
