/** A module as users get it, out of `dist`; its types come from the source it was built from. */
export async function built<T>(path: string): Promise<T> {
  return (await import(new URL(`../../dist/${path}`, import.meta.url).href)) as T
}
