import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { ApiError, get, session } from './api.ts'

export interface Polled<T> {
  /** The last good answer stays while a newer one is on its way, or fails. */
  readonly data: T | undefined
  readonly error: ApiError | undefined
  /** When `data` came, by performance.now(). */
  readonly atMs: number
  readonly reload: () => void
}

/** Asks at once, then every `everyMs` as long as somebody can see the page; without it only when told to. */
export function usePolled<T>(path: string, everyMs?: number): Polled<T> {
  const [answer, setAnswer] = useState<Omit<Polled<T>, 'reload'>>({ data: undefined, error: undefined, atMs: 0 })
  const [round, setRound] = useState(0)
  const asked = useRef<AbortController | undefined>(undefined)
  const { value: asker } = session

  // Another token, or another round, asks again.
  useEffect(() => {
    const ask = async (): Promise<void> => {
      asked.current?.abort()
      const abort = new AbortController()
      asked.current = abort
      try {
        const data = await get<T>(path, abort.signal)
        if (!abort.signal.aborted) setAnswer({ data, error: undefined, atMs: performance.now() })
      } catch (error) {
        if (!abort.signal.aborted) setAnswer((last) => ({ ...last, error: asApiError(error) }))
      }
    }
    const askIfSeen = (): void => {
      if (!document.hidden) void ask()
    }
    void ask()
    const timer = everyMs === undefined ? undefined : setInterval(askIfSeen, everyMs)
    if (everyMs !== undefined) document.addEventListener('visibilitychange', askIfSeen)
    return () => {
      asked.current?.abort()
      clearInterval(timer)
      document.removeEventListener('visibilitychange', askIfSeen)
    }
  }, [path, everyMs, asker, round])

  const reload = useCallback(() => setRound((value) => value + 1), [])
  return { ...answer, reload }
}

export function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, error instanceof Error ? error.message : String(error))
}

/** Renders again every `everyMs`: for what counts down. */
export function useTick(everyMs: number): void {
  const [, setTick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => setTick((tick) => tick + 1), everyMs)
    return () => clearInterval(timer)
  }, [everyMs])
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · oncekey`
  }, [title])
}
