/** A module as users get it, out of `dist`; its types come from the source it was built from. */
export async function built<T>(path: string): Promise<T> {
  return (await import(new URL(path, DIST).href)) as T
}

/** Another build only when this process was started for one: `--against`. */
const DIST = process.env.ONCEKEY_BENCH_DIST ?? new URL('../../dist/', import.meta.url).href
