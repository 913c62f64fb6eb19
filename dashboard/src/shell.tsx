import { useEffect, useState } from 'preact/hooks'
import { isLockedOut, type Status, unlock } from './api.ts'
import { useKeys } from './keys.ts'
import { connection, retryNow } from './live.ts'
import { notice } from './parts/actions.tsx'
import { Dialog } from './parts/dialog.tsx'
import { Empty } from './parts/states.tsx'
import { usePolled, useTick } from './polled.ts'
import { back, go, place } from './router.ts'
import { status } from './status.ts'
import { theme, toggleTheme } from './theme.ts'
import { LiveView } from './views/live.tsx'
import { OperationView } from './views/operation.tsx'
import { OperationsView } from './views/operations.tsx'
import { Overview } from './views/overview.tsx'
import { StoreView } from './views/store.tsx'
import { StuckView } from './views/stuck.tsx'

const VIEWS = [
  { path: '/', label: 'Overview' },
  { path: '/live', label: 'Live' },
  { path: '/operations', label: 'Operations' },
  { path: '/stuck', label: 'In flight' },
  { path: '/store', label: 'Store' },
] as const

const STATUS_EVERY_MS = 5_000
const NOTICE_MS = 6_000

/** What is around every view: the way between them, the state of the stream, the keys. */
export function Shell() {
  const [isHelpOpen, setHelpOpen] = useState(false)
  useKeys(
    {
      '?': () => setHelpOpen(true),
      t: toggleTheme,
      '/': focusSearch,
      Escape: () => back('/'),
      ...Object.fromEntries(VIEWS.map(({ path }, i) => [String(i + 1), () => go(path)])),
    },
    'everywhere',
  )
  if (isLockedOut.value) return <Lock />
  return (
    <div class="shell">
      <a class="skip" href="#main">
        Go to the content
      </a>
      <Rail onHelp={() => setHelpOpen(true)} />
      <main id="main" tabIndex={-1}>
        <View />
      </main>
      <Notice />
      {isHelpOpen && <Help onClose={() => setHelpOpen(false)} />}
    </div>
  )
}

function View() {
  const { path } = place.value
  const [, id] = /^\/operations\/([^/]+)$/.exec(path) ?? []
  if (id !== undefined) return <OperationView key={id} id={decodeURIComponent(id)} />
  switch (path) {
    case '/':
      return <Overview />
    case '/live':
      return <LiveView />
    case '/operations':
      return <OperationsView />
    case '/stuck':
      return <StuckView />
    case '/store':
      return <StoreView />
    default:
      return (
        <Empty title="There is no such view.">
          The address is not one of the dashboard’s. <a href="/">Go to the overview</a>
        </Empty>
      )
  }
}

function focusSearch(): void {
  const field = document.querySelector<HTMLInputElement>('[data-search]')
  if (field === null) go('/operations')
  requestAnimationFrame(() => document.querySelector<HTMLInputElement>('[data-search]')?.focus())
}

function Rail({ onHelp }: { onHelp: () => void }) {
  const { path } = place.value
  const isDark = theme.value === 'dark'
  return (
    <header class="rail">
      <a class="mark" href="/" aria-label="oncekey, to the overview">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <circle cx="10" cy="16" r="6" />
          <path d="M16 16h13M25 16v6" />
        </svg>
        oncekey
      </a>
      <nav aria-label="Views">
        {VIEWS.map((view) => {
          const isHere = view.path === path || (view.path === '/operations' && path.startsWith('/operations/'))
          return (
            <a key={view.path} href={view.path} aria-current={isHere ? 'page' : undefined}>
              {view.label}
            </a>
          )
        })}
      </nav>
      <div class="rail-foot">
        <StatusLines />
        <div class="rail-buttons">
          <button
            type="button"
            onClick={toggleTheme}
            aria-label={isDark ? 'Light theme' : 'Dark theme'}
            title="Theme (t)"
          >
            {isDark ? 'Light' : 'Dark'}
          </button>
          <button type="button" onClick={onHelp} aria-label="Keys" title="Keys (?)">
            Keys
          </button>
        </div>
      </div>
    </header>
  )
}

function StatusLines() {
  const { data, error } = usePolled<Status>('/api/status', STATUS_EVERY_MS)
  useEffect(() => {
    if (data !== undefined) status.value = data
  }, [data])
  const isDown = error !== undefined || data?.store.ok === false
  return (
    <div class="status-lines">
      <StreamLine />
      <a class={`line ${isDown ? 'bad' : 'good'}`} href="/store">
        {error !== undefined
          ? 'No answer from the API'
          : data === undefined
            ? 'Store …'
            : `${data.store.name} ${data.store.ok ? 'answers' : 'does not answer'}`}
      </a>
      {data?.readOnly && <span class="line">Read-only</span>}
    </div>
  )
}

function StreamLine() {
  const { value } = connection
  return (
    <div role="status" class="stream">
      {value.state === 'lost' ? (
        <LostLine why={value.why} retryAtMs={value.retryAtMs} />
      ) : (
        <span class={`line ${value.state === 'open' ? 'good' : ''}`}>
          {value.state === 'open' ? 'Live' : 'Connecting …'}
        </span>
      )}
    </div>
  )
}

function LostLine({ why, retryAtMs }: { why: string; retryAtMs: number }) {
  useTick(500)
  const leftS = Math.max(0, Math.ceil((retryAtMs - performance.now()) / 1_000))
  return (
    <button type="button" class="line bad" title={`${why} Click to try now.`} onClick={retryNow}>
      Reconnecting {leftS > 0 ? `in ${leftS} s` : '…'}
    </button>
  )
}

function Notice() {
  const { value } = notice
  useEffect(() => {
    if (value === '') return
    const timer = setTimeout(() => {
      notice.value = ''
    }, NOTICE_MS)
    return () => clearTimeout(timer)
  }, [value])
  return (
    <div class="notice" role="status">
      {value !== '' && <p>{value}</p>}
    </div>
  )
}

function Lock() {
  const [given, setGiven] = useState('')
  return (
    <main class="lock">
      <form
        onSubmit={(event) => {
          event.preventDefault()
          unlock(given.trim())
        }}
      >
        <h1>oncekey</h1>
        <p>This admin API asks for a token: the one that it was started with. It is kept until this tab is closed.</p>
        <label>
          Token
          <input
            type="password"
            autocomplete="off"
            required
            value={given}
            onInput={({ currentTarget }) => setGiven(currentTarget.value)}
          />
        </label>
        <button type="submit" class="strong">
          Open
        </button>
      </form>
    </main>
  )
}

const KEYS: ReadonlyArray<readonly [keys: string, meaning: string]> = [
  ['1 … 5', 'the views, in their order'],
  ['/', 'search'],
  ['j k ↓ ↑', 'the next and the previous row'],
  ['Home End', 'the first and the last row'],
  ['Enter', 'open the row'],
  ['Esc', 'back; out of a field'],
  ['p', 'pause the live feed'],
  ['r', 'load again'],
  ['t', 'light or dark'],
  ['?', 'this'],
]

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              {keys.split(' ').map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <div class="dialog-foot">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  )
}
